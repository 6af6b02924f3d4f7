"""Settings and secrets from the environment, and what the command prints of them."""

import pytest

from server.address import check_exposure, is_loopback
from server.cli import main
from server.environment import child_environment, read_keys, read_settings
from server.setting_values import SettingsError
from server.settings import SecuritySettings, ServerSettings, Settings, load_settings
from server.startup_errors import AddressError

SECRET = "a-secret-of-some-length"


def test_a_variable_is_a_setting_between_file_and_command_line(tmp_path):
    path = tmp_path / "s.toml"
    path.write_text("[server]\nport = 1\nmax_choices = 2\nmax_prompts = 3\n")
    variables = {
        "SLIPSTREAM_SERVER_MAX_CHOICES": "4",
        "SLIPSTREAM_SERVER_MAX_PROMPTS": "5",
        "SLIPSTREAM_MODEL_SERVED_NAMES": "a,b",
        "SLIPSTREAM_ENGINE_PAGE_SIZE": "32",
        "SLIPSTREAM_MODEL_REVISION": "",
        "PATH": "/bin",
    }
    settings = load_settings(path, ["server.max_prompts=6"], read_settings(variables))
    server = settings.server
    assert (server.port, server.max_choices, server.max_prompts) == (1, 4, 6)
    assert settings.model.served_names == ("a", "b")
    assert settings.engine == {"page_size": 32}
    assert settings.origins == {
        "server.port": str(path),
        "server.max_choices": "environment",
        "server.max_prompts": "command line",
        "model.served_names": "environment",
        "engine.page_size": "environment",
    }


@pytest.mark.parametrize("name", ["SLIPSTREAM_PORT", "SLIPSTREAM_SERVER", "SLIPSTREAM_SRV_PORT"])
def test_a_variable_that_means_nothing_is_an_error(name):
    with pytest.raises(SettingsError, match=f"{name} means nothing"):
        read_settings({name: "1"})


def test_an_unknown_key_in_a_variable_is_an_error():
    with pytest.raises(SettingsError, match=r"server\.prot is not a setting; did you mean port"):
        load_settings(None, (), read_settings({"SLIPSTREAM_SERVER_PROT": "1"}))


def test_keys_come_from_files_and_variables(tmp_path):
    path = tmp_path / "keys"
    path.write_text(f"anna {SECRET}\n")
    variables = {"SLIPSTREAM_API_KEYS": "a-secret-of-bob", "SLIPSTREAM_ADMIN_KEY": "x" * 9}
    ring = read_keys(SecuritySettings(api_keys_file=str(path)), variables)
    assert len(ring.clients) == 2
    assert ring.clients[0].name == "anna"
    assert len(ring.admins) == 1


def test_keys_without_names_have_one_each_wherever_they_stand(tmp_path):
    """A name is an owner: two clients of one name would read each other's files."""
    paths = {name: tmp_path / name for name in ("clients", "admins")}
    for name, path in paths.items():
        path.write_text(f"secret-of-file-{name}\n")
    variables = {
        "SLIPSTREAM_API_KEY": "secret-of-variable",
        "SLIPSTREAM_API_KEYS": "secret-of-list-1,secret-of-list-2",
        "SLIPSTREAM_ADMIN_KEY": "secret-of-admin",
        "SLIPSTREAM_ADMIN_KEYS": "secret-of-admins",
    }
    settings = SecuritySettings(
        api_keys_file=str(paths["clients"]), admin_keys_file=str(paths["admins"])
    )
    ring = read_keys(settings, variables)
    names = {key.digest: key.name for key in (*ring.clients, *ring.admins)}
    assert len(set(names.values())) == len(names) == 7
    del variables["SLIPSTREAM_API_KEY"]
    fewer = read_keys(settings, variables)
    for key in (*fewer.clients, *fewer.admins):
        assert names[key.digest] == key.name, "others come and go, a name stays"


@pytest.mark.parametrize("admin", [False, True])
@pytest.mark.parametrize("again", [SECRET, f"bob {SECRET}", "anna other-secret"])
def test_what_two_sources_both_name_is_an_error(tmp_path, again, admin):
    path = tmp_path / "keys"
    path.write_text(f"anna {SECRET}\n")
    variables = {"SLIPSTREAM_ADMIN_KEYS" if admin else "SLIPSTREAM_API_KEYS": again}
    with pytest.raises(SettingsError, match=f"{path}, line 1, too") as caught:
        read_keys(SecuritySettings(api_keys_file=str(path)), variables)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(("text", "message"), [("", "holds no key"), (None, "cannot be read")])
def test_a_file_without_keys_is_an_error(tmp_path, text, message):
    path = tmp_path / "keys"
    if text is not None:
        path.write_text(text)
    with pytest.raises(SettingsError, match=f"security.api_keys_file: .*{message}"):
        read_keys(SecuritySettings(api_keys_file=str(path)), {})


def test_secrets_do_not_reach_children_or_the_terminal(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("SLIPSTREAM_API_KEY", SECRET)
    assert SECRET not in child_environment().values()
    assert main(["config", "--set", "engine.page_size=32"]) == 0
    printed = capsys.readouterr().out
    assert SECRET not in printed
    assert "client keys = ********" in printed
    assert "engine.page_size = 32  # command line" in printed
    assert 'server.host = "127.0.0.1"  # default' in printed
    assert main(["config", "--set", "engine.pagesize=32"]) == 2


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False)],
)
def test_what_others_reach_needs_a_key(host, loopback):
    assert is_loopback(host) == loopback
    settings = Settings(server=ServerSettings(host=host))
    if loopback:
        check_exposure(settings)
        return
    with pytest.raises(AddressError, match="there is no key; set SLIPSTREAM_API_KEY"):
        check_exposure(settings)
    check_exposure(
        Settings(server=settings.server, security=SecuritySettings(allow_unauthenticated=True))
    )
    keys = read_keys(SecuritySettings(), {"SLIPSTREAM_API_KEY": SECRET})
    check_exposure(Settings(server=settings.server, keys=keys))
    admins = read_keys(SecuritySettings(), {"SLIPSTREAM_ADMIN_KEY": SECRET})
    with pytest.raises(AddressError):
        check_exposure(Settings(server=settings.server, keys=admins))
