"""Scripts call only commands that a job may call: a user of Redis ACLs has no others."""

from __future__ import annotations

import re
from importlib import resources

import pytest

from redis_state import acl
from redis_state.acl import Role
from redis_state.backend import needs

FOLDER = resources.files("redis_state.backend").joinpath("scripts")
NAMES = sorted(path.name for path in FOLDER.iterdir() if path.name.endswith(".lua"))


@pytest.mark.parametrize("name", NAMES)
def test_script_calls_only_commands_of_a_job(name: str) -> None:
    text = FOLDER.joinpath(name).read_text()
    calls = re.findall(r"redis\.p?call\(([^,)]*)", text)
    called = {one for call in calls for one in re.findall(r"'([A-Z]+)'", call)}
    # A command that is not named there could not be checked.
    assert all("'" in call for call in calls)
    allowed = set(acl.commands(Role.JOB, version="7.2"))
    assert {one for one in called if one.lower() not in allowed} == set()
    assert called - set(needs.COMMANDS) == set()
