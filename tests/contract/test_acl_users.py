"""`docker/redis-state/acl_users.py`: the users that it creates may do their work, and no more."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from redis_state.cli.main import main
from tests.contract.planting import Planted
from tests.contract.test_exporter import exporter, scrape
from tests.support.redis_server import RedisServer

SCRIPT = Path(__file__).resolve().parents[2] / "docker" / "redis-state" / "acl_users.py"


def secret(folder: Path, name: str) -> Path:
    path = folder / name
    path.write_text(f"password of {name}\n")
    return path


def created(server: RedisServer, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), "--version=7.0", f"--node={server.url}", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_created_users_maintain_and_read(
    redis_server: RedisServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    planted = Planted(redis_server.client(), partitions=2)
    planted.register()
    planted.commit(1, [({"carrier": "UA"}, {"count": 1, "total": 0.5})])
    upkeep, look = secret(tmp_path, "upkeep"), secret(tmp_path, "look")
    for _ in range(2):
        done = created(redis_server, f"--user=maintainer:m:{upkeep}", f"--user=reader:r:{look}")
        assert (done.returncode, done.stderr) == (0, "")
        assert (
            done.stdout
            == f"{redis_server.url}: m, r; it has no ACL file, so a restart loses them\n"
        )
    given = ["--url", redis_server.url]
    login = ["--username", "m", "--password-file", str(upkeep)]
    assert main(["maintain", *given, *login, "--once"]) == 0
    assert "0 problems" in capsys.readouterr().out
    with exporter(redis_server.url, "--username", "r", "--password-file", str(look)) as address:
        assert scrape(address)["redis_state_up", ""] == 1
    login = ["--username", "r", "--password-file", str(look)]
    assert main(["maintain", *given, *login, "--once"]) == 1
    assert "[REDIS_PERMISSION]" in capsys.readouterr().err


def test_users_are_saved_where_the_server_has_an_acl_file(
    start_redis: Callable[..., RedisServer], tmp_path: Path
) -> None:
    (tmp_path / "users.acl").write_text("user default on nopass ~* &* +@all\n")
    server = start_redis(options={"aclfile": str(tmp_path / "users.acl")})
    done = created(server, f"--user=job:j:{secret(tmp_path, 'job')}")
    assert (done.returncode, done.stdout) == (0, f"{server.url}: j\n")
    assert "user j on" in (tmp_path / "users.acl").read_text()


def test_users_that_the_server_cannot_save_are_named_with_its_reason(
    start_redis: Callable[..., RedisServer], tmp_path: Path
) -> None:
    folder = tmp_path / "acl"
    folder.mkdir()
    (folder / "users.acl").write_text("user default on nopass ~* &* +@all\n")
    server = start_redis(options={"aclfile": str(folder / "users.acl")})
    folder.rename(tmp_path / "elsewhere")
    done = created(server, f"--user=job:j:{secret(tmp_path, 'job')}")
    assert done.returncode == 0
    assert "error trying to save the ACLs" in done.stdout
    assert "so a restart loses them" in done.stdout
    assert "no ACL file" not in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--user=maintainer:m:/no/file"], "reading the password file /no/file"),
        (["--user=admin:m:/no/file"], "invalid user_of value"),
        (["--user=reader:a b:/no/file"], "invalid user_of value"),
    ],
)
def test_wrong_user_is_refused(redis_server: RedisServer, words: list[str], message: str) -> None:
    done = created(redis_server, *words)
    assert done.returncode in (1, 2)
    assert message in done.stderr
    users = redis_server.client().acl_users()
    assert users == [b"default"] or users == ["default"]


def test_refused_admin_is_named(redis_server: RedisServer, tmp_path: Path) -> None:
    with redis_server.client() as client:
        client.config_set("requirepass", "secret")
        done = created(redis_server, f"--user=reader:r:{secret(tmp_path, 'r')}")
        assert done.returncode == 1
        assert done.stderr.startswith("error: ")
