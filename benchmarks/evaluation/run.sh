#!/bin/sh
# Builds the indexes, runs suite.yaml and writes the report to ../results/evaluation. Stop it when you like; it goes on where it was.
set -eu
cd "$(dirname "$0")"
mkdir -p work/index
for data in nq triviaqa hotpotqa musique 2wikimultihopqa popqa; do
    [ -d "work/index/$data" ] || inward index build "../../../shared/data/$data/corpus.jsonl.gz" "work/index/$data"
done
inward eval run suite.yaml
inward eval report work/runs --out ../results/evaluation --title "Four strategies, six data sets, google/gemma-3-270m"
