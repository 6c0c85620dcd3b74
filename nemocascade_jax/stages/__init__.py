"""Stage kinds: what the next batch is, and what the loss is; a stage itself is a config."""
