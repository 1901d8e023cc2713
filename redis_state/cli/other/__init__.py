"""Commands that read no state: `conf`, `demo`, `completion` and `options-doc`."""
