"""An oracle of the protocol: random schedules on a real server, judged by plain dicts."""
