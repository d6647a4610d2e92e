"""Making probers: drafts with their states, labels, training, calibration, and what a prober is worth."""
