"""Redis as the reader and the command see it: pipelines, scripts and what their answers mean."""
