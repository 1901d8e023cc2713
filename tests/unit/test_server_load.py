"""Shares of commands between two samples of a server's counters."""

from __future__ import annotations

from redis_state.status.server_load import _LoadSample


def test_shares_are_those_of_the_time_between_the_samples() -> None:
    before = _LoadSample(1.0, 0.0, {"get": 100, "exec": 100})
    after = _LoadSample(2.0, 0.5, {"get": 400, "exec": 200, "ping": 0})
    assert after.since(before) == (("get", 0.75), ("exec", 0.25))


def test_counters_that_were_reset_between_the_samples_have_no_share() -> None:
    before = _LoadSample(1.0, 0.0, {"get": 10})
    assert _LoadSample(2.0, 0.0, {"get": 0, "exec": 10}).since(before) == (("exec", 1.0),)
    assert _LoadSample(2.0, 0.0, {"get": 0}).since(before) == ()
