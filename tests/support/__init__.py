"""What tests share: servers, an engine for containers."""
