"""Secrets come from files and the environment, and no copy of a config holds one."""

from pathlib import Path

import pytest

from deploy.launch.planning.plan import as_dict
from services.config.file import default_config, dump_config, lay_over, load_config
from services.config.redis import child_secrets, redis_url
from services.config.secrets import env_token, masked
from services.config.tree import Config
from services.errors import UserError

CANARY = "c4n4ry-Secret"


def config(**redis: object) -> Config:
    return Config.model_validate({"name": "r", "steps": 1, "redis": redis})


@pytest.mark.parametrize(("url", "shown"), [
    (f"redis://:{CANARY}@h:1/0", "redis://:***@h:1/0"), (f"rediss://me:{CANARY}@h", "rediss://me:***@h"),
    (f"redis://me:a@b{CANARY}@h:1", "redis://me:***@h:1"), (f"redis://h?password={CANARY}&db=1", "redis://h?password=***&db=1"),
    ("redis://h:1/0", "redis://h:1/0"), ("redis://me@h:1", "redis://me@h:1"), ("", "")])
def test_a_password_is_masked_wherever_a_url_has_it(url: str, shown: str):
    assert masked(url) == shown


def test_no_copy_of_a_config_holds_the_password_and_the_run_itself_has_it(tmp_path: Path):
    made = config(url=f"redis://:{CANARY}@h:1/0")
    dump_config(made, tmp_path / "config.yaml")
    copies = [(tmp_path / "config.yaml").read_text(), made.model_dump_json(), str(as_dict(made))]
    assert all(CANARY not in text and "redis://:***@h:1/0" in text for text in copies)
    assert redis_url(made.redis) == redis_url(lay_over(made, {"steps": 2}).redis) == f"redis://:{CANARY}@h:1/0"
    assert tmp_path.joinpath("config.yaml").stat().st_mode & 0o077 == 0


def test_a_copy_takes_the_password_from_a_file_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    dump_config(config(url=f"redis://me:{CANARY}@h:1/0"), tmp_path / "config.yaml")
    with pytest.raises(UserError, match=r"was removed from this copy .*; set redis.password_file or \$GAGPO_REDIS_PA"):
        redis_url(load_config(tmp_path / "config.yaml").redis)
    monkeypatch.setenv("GAGPO_REDIS_PASSWORD", "p/w\n")
    assert redis_url(load_config(tmp_path / "config.yaml").redis) == "redis://me:p%2Fw@h:1/0"
    (tmp_path / "password").write_text("filed\n")
    found = load_config(tmp_path / "config.yaml", [f"redis.password_file={tmp_path / 'password'}"])
    assert redis_url(found.redis) == "redis://me:filed@h:1/0"
    assert redis_url(config(url="redis://h:1", password_file=tmp_path / "password").redis) == "redis://:filed@h:1"
    assert redis_url(config().redis) is None


@pytest.mark.parametrize("url", ["redis://:p%2Fw%25@h:1/0", "redis://me:secret@h", "redis://h:1", None])
def test_a_child_process_has_the_password_that_its_copy_lacks(url, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The runs of a sweep ended at once, and those of an experiment after its cold start."""
    made = config(url=url)
    dump_config(made, tmp_path / "config.yaml")
    for name, value in child_secrets(made.redis).items():
        monkeypatch.setenv(name, value)
    assert redis_url(load_config(tmp_path / "config.yaml").redis) == url


@pytest.mark.parametrize("key", ["password_file", "ca_file"])
def test_a_key_of_a_given_redis_without_its_address_is_refused(key: str):
    with pytest.raises(UserError, match=rf"redis: {key} is set without url: set the address too, or leave out {key}"):
        default_config([f"redis.{key}=/secret"])


def test_a_token_comes_from_its_file_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GAGPO_ENV_TOKEN", "variable")
    assert env_token(default_config().env) == "variable"
    (tmp_path / "token").write_text("filed\n")
    assert env_token(default_config([f"env.token_file={tmp_path / 'token'}"]).env) == "filed"


@pytest.mark.parametrize("made", [lambda file: None, lambda file: file.write_text("\n"), Path.mkdir,
                                  lambda file: file.write_bytes(b"\xff\xfe"),
                                  lambda file: file.symlink_to("/dev/zero")])
def test_a_secret_that_cannot_be_read_is_one_line(tmp_path: Path, made):
    made(tmp_path / "secret")
    with pytest.raises(UserError) as error:
        redis_url(config(url="redis://h", password_file=tmp_path / "secret").redis)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("override", [
    *(f"{key}={scheme}://me:{CANARY}@h" for scheme in ("http", "s3")
      for key in ("storage.url", "redis.bodies", "env.search.url", "env.urls", "steps")),
    f"redis://me:{CANARY}@h", f'redis.url="redis://me:{CANARY}@h'])
def test_no_refusal_repeats_a_password(override: str):
    with pytest.raises(UserError) as error:
        default_config([override])
    assert CANARY not in str(error.value)


def test_a_broken_url_is_not_repeated_with_its_password(tmp_path: Path):
    (tmp_path / "c.yaml").write_text(f"name: r\nsteps: 1\nredis: {{url: 'redis://h?password={CANARY}'}}\n")
    with pytest.raises(UserError) as error:
        load_config(tmp_path / "c.yaml")
    assert CANARY not in str(error.value)


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_an_environment_servers_address_holds_no_password(scheme: str):
    """config.yaml, the log, the store and Prometheus' targets would show it, and by http no request would carry it."""
    with pytest.raises(UserError, match=r"env\.urls.*: it should have no user and password.* env\.token_file") as error:
        default_config([f"env.urls=[{scheme}://me:{CANARY}@h:1]"])
    assert CANARY not in str(error.value)


@pytest.mark.attack
@pytest.mark.parametrize("token", [f"{CANARY}\nx-admin: 1", f"{CANARY} y", f"{CANARY}\x00", f"{CANARY}\u20ac"])
def test_a_token_that_no_header_carries_is_refused_and_not_shown(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, token: str):
    """httpx would repeat such a header in its error."""
    if "\0" not in token:
        monkeypatch.setenv("GAGPO_ENV_TOKEN", token)
        with pytest.raises(UserError, match=r"in \$GAGPO_ENV_TOKEN holds a space or") as error:
            env_token(default_config().env)
        assert CANARY not in str(error.value)
    (tmp_path / "token").write_text(token)
    if "\n" not in token:
        with pytest.raises(UserError, match=r"/token holds a space or") as error:
            env_token(default_config([f"env.token_file={tmp_path / 'token'}"]).env)
        assert CANARY not in str(error.value)


def test_a_secret_mounted_with_its_line_end_is_the_secret(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GAGPO_ENV_TOKEN", "variable\n")
    assert env_token(default_config().env) == "variable"


@pytest.mark.parametrize("url", [
    f"redis://:{CANARY}[x@h:1/0", f"redis://:{CANARY}#x@h:1/0", f"redis://:{CANARY}/x@h:1/0", f"redis://:[{CANARY}]@h",
    f"rediss://me:x?{CANARY}@h", f"sentinel://:{CANARY}#x@h:1/main", f"redis://:{CANARY}@h:{CANARY}/0",
    f"redis://:1/{CANARY}@h", f"redis://:{CANARY}#x"])
def test_an_address_with_a_password_that_is_not_encoded_is_refused_without_any_part_of_it(url: str, capsys):
    with pytest.raises(UserError, match=r"^redis\.url: .*(percent-encode|should be the number)") as error:
        config_of(url)
    assert CANARY not in str(error.value)
    assert "\n" not in str(error.value)


def config_of(url: str) -> Config:
    return default_config([f"redis.url='{url}'"])


@pytest.mark.parametrize("url", ["redis://host/zero", "redis://h:1/0/1"])
def test_an_address_whose_database_is_no_number_is_refused_with_the_config(url: str):
    with pytest.raises(UserError, match=r"redis\.url: .* should be the number of a database"):
        config_of(url)


@pytest.mark.parametrize("url", ["redis://h", "redis://h:1/", "redis://:p%23@[::1]:1/2", "unix:///a@b/redis",
                                 "sentinel://u:p@h:1,g:2/main/0", "rediss://h/0?db=1"])
def test_an_address_that_redis_takes_is_taken(url: str):
    assert redis_url(config_of(url).redis) == url


def test_a_password_is_masked_in_an_address_without_its_slashes():
    assert (masked("me:pw@h"), masked("redis:/me:pw@h")) == ("me:***@h", "redis:/me:***@h")
