"""Commands beside state: `conf`, `demo`, `completion` and `options-doc`."""
