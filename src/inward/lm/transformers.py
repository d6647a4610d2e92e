"""The transformers backend: any decoder of `AutoModelForCausalLM`, driven by our own decode loop."""

from __future__ import annotations

import inspect
import logging
from functools import lru_cache
from typing import Any

import torch

from inward.errors import BadInput, ContextLengthExceeded, OutOfMemory, Unsupported, UsageError
from inward.lm.attention import IMPLEMENTATION
from inward.lm.capture import Taps
from inward.lm.cold import ColdEngine
from inward.lm.decode import SHARED_BY, Engine
from inward.lm.encode import Encoder
from inward.lm.head import tile_head
from inward.lm.identity import model_fingerprint
from inward.lm.kv import columns_for
from inward.lm.loading import Loaded
from inward.lm.memory import bytes_per_token, token_budget
from inward.lm.prefixes import MIN_TOKENS
from inward.protocols import Feature, Finished, Progress, Request, RequestId
from inward.types import Completion, Prompt, Sampling

log = logging.getLogger(__name__)

_PREFIX_SHARE = 0.25
"""Of the token budget, for prefixes kept between requests."""
_PROBE_TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-5}
_PROBE_TOLERANCE_16_BIT = 0.25
_PROBE_ERRORS = (Unsupported, TypeError, ValueError, AttributeError, KeyError, IndexError, RuntimeError, NotImplementedError)
"""What a model that was not written for packed steps may raise when it meets one."""


class TransformersBackend:
    """One model, one tokenizer, one running batch.

    `supports` says what the model can give: every decoder generates, captures come from the families of
    `inward.lm.capture.FAMILIES`.
    """

    def __init__(self, loaded: Loaded, *, prefix_reuse: bool = True, budget: int | None = None) -> None:
        """Take over a loaded model.

        Args:
            loaded: what `inward.lm.loading.load_pretrained` returns.
            prefix_reuse: compute shared prompt prefixes once.
            budget: tokens of keys and values that may be in use at once; default: half of the free memory.
        """
        self.name = loaded.name
        self.model = loaded.model
        self.encoder = Encoder(loaded.tokenizer, generation_config=loaded.generation_config, chat_template=loaded.chat_template)
        self.notes: list[str] = list(loaded.notes)
        self._config = loaded.model.config.get_text_config()
        self._taps = Taps(self.model)
        tile_head(self.model)
        self.budget = budget if budget is not None else token_budget(self.model)
        self._prefix_reuse = prefix_reuse
        self._encode = lru_cache(maxsize=4096)(self.encoder.encode)
        self._engine: Engine | ColdEngine = self._choose_engine()
        self._fingerprint: str | None = None
        if self.packed and self.context < (longest := self._longest):
            self.notes.append(f"its rotary angles change beyond {self.context} tokens: the context ends there, not at {longest}")

    @property
    def packed(self) -> bool:
        """Whether the running batch is packed; otherwise every pass starts cold."""
        return isinstance(self._engine, Engine)

    @property
    def passes(self) -> list[tuple[int, int]]:
        """Tokens fed and logit rows made in each of the last forward passes."""
        return list(self._engine.passes)

    @property
    def dtype(self) -> torch.dtype:
        """Of weights and activations."""
        dtype: torch.dtype = self.model.get_input_embeddings().weight.dtype
        return dtype

    @property
    def num_layers(self) -> int:
        """Blocks of the model."""
        return self._taps.num_layers

    @property
    def fingerprint(self) -> str:
        """Identity of the model: a hash over configuration, tokenizer, template and a sample of every weight."""
        if self._fingerprint is None:
            self._fingerprint = model_fingerprint(self.model, self.encoder.fingerprint)
        return self._fingerprint

    @property
    def supports(self) -> frozenset[Feature]:
        """What this model can give."""
        always: set[Feature] = {"logprobs", "samples", "logit_bias", "watch", "score"}
        if self._taps.known:
            always.add("states")
        if self.packed:
            always.add("attention")
        if self.encoder.is_chat:
            always.add("chat")
        return frozenset(always)

    @property
    def context(self) -> int:
        """Positions that the model was made for; up to where its rotary angles change, if they do with length."""
        return min(self._longest, _one_set_of_angles(self._config)) if self.packed else self._longest

    @property
    def _longest(self) -> int:
        return int(getattr(self._config, "max_position_embeddings", 0) or 1 << 30)

    def count(self, prompt: Prompt) -> int:
        """Tokens of the prompt."""
        return len(self._encode(prompt))

    def check(self, request: Request) -> None:
        """Raise if the request can never run.

        Raises:
            ContextLengthExceeded: prompt and completion do not fit the context together.
            Unsupported: the model cannot give what is asked for.
        """
        prompt = self.count(request.prompt)
        if not prompt:
            raise BadInput("the prompt is empty: there is nothing to continue")
        given = self._given(request)
        new = request.sampling.max_tokens if request.continuation is None else len(given)
        if prompt + new > self.context:
            raise ContextLengthExceeded(
                f"prompt ({prompt} tokens) and completion ({new}) need {prompt + new} tokens; "
                f"{self.name!r} has room for {self.context}: shorten the prompt or lower max_tokens"
            )
        vocabulary = self.model.get_output_embeddings().weight.shape[0]
        biased = tuple(i for i, _ in request.sampling.logit_bias)
        named = {"watch": request.sampling.watch, "logit_bias": biased, "the continuation": given}
        for name, ids in named.items():
            if wrong := [i for i in ids if not 0 <= i < vocabulary]:
                raise UsageError(f"{name} names tokens {wrong} that do not exist: the vocabulary has {vocabulary}")
        if request.capture is not None:
            self._check_capture(request)

    def _check_capture(self, request: Request) -> None:
        assert request.capture is not None
        self._taps.check(request.capture)
        if request.capture.attention is None:
            return
        if not self.packed:
            raise Unsupported(f"attention rows of {self.name!r} are refused: its attention runs outside the packed loop")
        if request.continuation is None:
            raise UsageError(
                "attention rows come from `score`: generate first, then score the generation's token ids with Capture(attention=...)"
            )

    def cost(self, request: Request) -> int:
        """Tokens of keys and values at their most, and the logits of a step in the same currency.

        A row takes a whole slot of its slab, and few rows of a prompt take a copy of it into theirs.
        """
        prompt = self.count(request.prompt)
        if request.continuation is not None:
            return prompt + len(self._given(request)) + self._logit_cost
        sampling = request.sampling
        copied = prompt if sampling.n < SHARED_BY else 0
        return prompt + sampling.n * (columns_for(copied + sampling.max_tokens) + self._logit_cost)

    @property
    def _logit_cost(self) -> int:
        return int(3 * 4 * self.model.get_output_embeddings().weight.shape[0] // bytes_per_token(self.model))

    def add(self, request: Request) -> RequestId:
        """Let a request join at the next step."""
        return self._engine.add(request, self._encode(request.prompt), self._given(request))

    def _given(self, request: Request) -> tuple[int, ...]:
        if request.continuation is None:
            return ()
        if isinstance(request.continuation, str):
            return tuple(self.encoder.encode_continuation(request.prompt, self._encode(request.prompt), request.continuation))
        return tuple(request.continuation)

    def step(self) -> list[Progress]:
        """Advance every row by one token.

        Raises:
            OutOfMemory: with the batch as it was asked for; the caller drops rows and tries again.
        """
        try:
            return self._engine.step()
        except (torch.OutOfMemoryError, MemoryError) as error:
            raise self._out_of_memory(error) from error
        except RuntimeError as error:
            if "allocate memory" in str(error) or "not enough memory" in str(error):
                raise self._out_of_memory(error) from error
            raise

    def _out_of_memory(self, error: BaseException) -> OutOfMemory:
        self._engine.forget()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        return OutOfMemory(
            f"{self.name!r} ran out of memory ({error}); "
            f"the batch budget is {self.budget} tokens: pass a smaller one with load_lm(budget=...)"
        )

    def drop(self, id: RequestId) -> None:
        """Take a request out of the batch."""
        self._engine.drop(id)

    # -- which loop ------------------------------------------------------------------------------------

    def _choose_engine(self) -> Engine | ColdEngine:
        """Use the packed loop if it reproduces the model's own forward pass; otherwise start every pass cold."""
        own = self.model.config._attn_implementation
        engine, reason = self._try_packed(own)
        if engine is not None:
            return engine
        self.model.set_attn_implementation(own)
        note = f"{self.name!r} runs without prefix reuse or batching, every pass from a cold start: {reason}"
        log.warning(note)
        self.notes.append(note)
        return ColdEngine(self.model, self.encoder, self._taps)

    def _try_packed(self, own: str) -> tuple[Engine | None, str]:
        try:
            self.model.set_attn_implementation(IMPLEMENTATION)
            if self.model.config.get_text_config()._attn_implementation != IMPLEMENTATION:
                return None, "its attention cannot be exchanged"
            prompts = _probe_ids(self.model.get_output_embeddings().weight.shape[0], self.encoder.eos_ids)
            packed = self._probe(prompts)
            self.model.set_attn_implementation(own)
            worst = self._difference(prompts, packed)
            self.model.set_attn_implementation(IMPLEMENTATION)
        except _PROBE_ERRORS as error:
            return None, f"{type(error).__name__}: {error}"
        allowed = _PROBE_TOLERANCE.get(self.dtype, _PROBE_TOLERANCE_16_BIT)
        if not worst < allowed:
            return None, f"packed log-probabilities differ from its own by {worst:.2g} nats (allowed: {allowed:g})"
        return self._packed_engine(), ""

    def _probe(self, prompts: list[tuple[int, ...]]) -> list[Completion]:
        """Generate two tokens for prompts that share a prefix: one pass for it, one for the prompts, one decoding."""
        engine = self._packed_engine()
        no_end = tuple((i, -1e9) for i in self.encoder.eos_ids)  # an end token at once would leave nothing to compare
        request = Request(prompt="", sampling=Sampling(max_tokens=2, token_scores=("logprobs",), logit_bias=no_end))
        ids = [engine.add(request, prompt) for prompt in prompts]
        done: dict[RequestId, Completion] = {}
        for _ in range(3):
            done |= {event.id: event.generation.completions[0] for event in engine.step() if isinstance(event, Finished)}
        return [done[id] for id in ids]

    def _packed_engine(self) -> Engine:
        parameters = inspect.signature(self.model.forward).parameters
        # transformers 5.24 renames `past_key_values` to `cache`; this is the one place that knows
        argument = "cache" if "cache" in parameters else "past_key_values"
        prefix_tokens = int(self.budget * _PREFIX_SHARE)
        return Engine(
            self.model, self.encoder, self._taps, cache_argument=argument, prefix_tokens=prefix_tokens, prefix_reuse=self._prefix_reuse
        )

    def _difference(self, prompts: list[tuple[int, ...]], packed: list[Completion]) -> float:
        """Largest difference between packed log-probabilities and those of the model's own forward pass, nats."""
        width = max(len(p) + len(c.token_ids) for p, c in zip(prompts, packed, strict=True))
        texts = [p + c.token_ids for p, c in zip(prompts, packed, strict=True)]
        ids = torch.tensor([t + (0,) * (width - len(t)) for t in texts], device=self.model.get_input_embeddings().weight.device)
        # only the last rows: a vocabulary times every position is what makes this slow
        keep = (
            {"logits_to_keep": width - len(prompts[0]) + 1} if "logits_to_keep" in inspect.signature(self.model.forward).parameters else {}
        )
        with torch.inference_mode():
            logits = self.model(input_ids=ids, use_cache=False, **keep).logits.float()
        first = width - logits.shape[1]
        worst = 0.0
        for row, prompt, completion in zip(logits, prompts, packed, strict=True):
            for i, (token, logprob) in enumerate(zip(completion.token_ids, completion.score("logprobs"), strict=True)):
                own = float(row[len(prompt) - 1 + i - first].log_softmax(-1)[token])
                worst = max(worst, abs(own - float(logprob)))
        return worst


def _one_set_of_angles(config: Any) -> int:
    """Length up to which every position keeps its rotary angle.

    `longrope` takes another set for all positions of a pass as soon as one is beyond the original length. In a
    shared pass a long row would change the short ones, and keys kept from before would be of the other set.
    """
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = [kind for kind in (rope, *rope.values()) if isinstance(kind, dict)]
    lengths = [kind.get("original_max_position_embeddings") for kind in kinds if kind.get("rope_type") == "longrope"]
    return min((int(length) for length in lengths if length), default=1 << 30)


def _probe_ids(vocabulary: int, eos_ids: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Prompts of one length sharing a prefix that is long enough to be computed once and read by all of them."""
    pool = [i for i in range(vocabulary // 7, vocabulary) if i not in eos_ids] or [0]
    prefix = tuple(pool[(7919 * i) % len(pool)] for i in range(MIN_TOKENS))
    return [(*prefix, pool[(104729 * (i + 1)) % len(pool)]) for i in range(SHARED_BY)]
