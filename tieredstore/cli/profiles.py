"""Named profiles in a file of the user. A profile has the location of a tier. It contains no
secrets, only the names of environment variables that hold them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tieredstore.disk.user_folders import find_user_folder, require_user_folder
from tieredstore.errors import Invalid

PLACES: Final = ("tier", "state", "config", "cluster", "broker")
"""Options that a profile may set."""
_VARIABLES: Final = "variables"
_DEFAULT: Final = "default"
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class Profile:
    """Named profile. `places`: values for the options in `PLACES`. `variables`: name of the
    environment variable that holds the value, by broker.conf key."""

    name: str
    places: Mapping[str, str]
    variables: Mapping[str, str] = field(default_factory=dict)

    def read_settings(self) -> dict[str, str]:
        """Return the settings whose values are in environment variables. Raises Invalid if a
        variable is not set."""
        for key, variable in self.variables.items():
            if not os.environ.get(variable):
                raise Invalid(
                    f"profile {self.name!r}: {key} is in the variable {variable}, which is not set"
                )
        return {key: os.environ[variable] for key, variable in self.variables.items()}


@dataclass(frozen=True, slots=True)
class ProfileFile:
    """The user's profiles, empty if there is no file. `default`: name of the default profile, or
    None."""

    path: Path
    profiles: Mapping[str, Profile]
    default: str | None = None

    def find(self, name: str) -> Profile:
        """Return a profile by name. Raises Invalid with suggestions for an unknown name."""
        found = self.profiles.get(name)
        if found is None:
            from tieredstore.cli.help.suggesting import hint_at

            known = ", ".join(self.profiles) or "none"
            hint = hint_at(name, self.profiles) or f"; there are: {known}"
            raise Invalid(f"{self.path}: no profile {name!r}{hint}", path=str(self.path))
        return found


def profile_path() -> Path:
    """Return the path of the profile file. Raises Invalid if there is no home folder."""
    folder = require_user_folder("XDG_CONFIG_HOME", ".config")
    return folder / "tieredstore" / "config.toml"


def load_profiles() -> ProfileFile:
    """Load the user's profiles. Empty without a home folder. Raises Invalid for a malformed file,
    or Unavailable."""
    if find_user_folder("XDG_CONFIG_HOME", ".config") is None:
        return ProfileFile(Path("config.toml"), {})
    path = profile_path()
    return parse_profiles(path, _read(path))


def parse_profiles(path: Path, text: str) -> ProfileFile:
    """Parse the text of a profile file. Raises Invalid."""
    if not text.strip():
        return ProfileFile(path, {})
    import tomllib

    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise Invalid(f"{path}: no TOML: {error}", path=str(path)) from None
    given = data.pop("profiles", {})
    default = data.pop(_DEFAULT, None)
    if data or not isinstance(given, dict):
        raise Invalid(f"{path}: expected `{_DEFAULT}` and tables [profiles.NAME]", path=str(path))
    profiles = {name: _make_profile(path, name, table) for name, table in given.items()}
    file = ProfileFile(path, profiles, default)
    if default is not None:
        file.find(str(default))
    return file


def _make_profile(path: Path, name: str, table: object) -> Profile:
    where = f"{path}: profile {name!r}"
    if not isinstance(table, dict):
        raise Invalid(f"{where}: expected a table", path=str(path))
    places = dict(table)
    variables = places.pop(_VARIABLES, {})
    for key in places:
        if key not in PLACES:
            from tieredstore.cli.help.suggesting import hint_at

            hint = hint_at(key, PLACES) or f"; expected {', '.join(PLACES)} or [{_VARIABLES}]"
            raise Invalid(f"{where}: unknown key {key!r}{hint}", path=str(path))
    if not isinstance(variables, dict) or not _are_texts([*places.values(), *variables.values()]):
        raise Invalid(f"{where}: expected texts", path=str(path))
    for key, variable in variables.items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", variable):
            raise Invalid(  # the value may be a secret
                f"{where}: {key}: expected the name of a variable of the environment",
                path=str(path),
            )
    for key in ("state", "config"):
        if key in places:
            places[key] = _absolute(where, key, places[key])
    if "://" not in places.get("tier", "://"):
        places["tier"] = _absolute(where, "tier", places["tier"])
    return Profile(name, places, variables)


def _are_texts(values: list[object]) -> bool:
    return all(isinstance(value, str) and value for value in values)


def _absolute(where: str, key: str, text: str) -> str:
    """Return the text as an absolute path, which does not depend on the working directory. Raises
    Invalid for a relative path."""
    path = Path(text).expanduser()
    if not path.is_absolute():
        raise Invalid(f"{where}: {key} {text!r}: expected an absolute path, or one from ~/")
    return str(path)


def write_profile(name: str, places: Mapping[str, str], variables: Mapping[str, str]) -> Path:
    """Write or replace a profile, and return the path of the file. The rest of the file is
    unchanged. Raises Invalid or Unavailable."""
    if not _NAME.fullmatch(name):
        raise Invalid(f"profile {name!r}: expected up to 64 letters, digits, - and _")
    lines = [f"[profiles.{name}]", *_settings(places)]
    if variables:
        lines += [f"[profiles.{name}.{_VARIABLES}]", *_settings(variables)]
    path = profile_path()
    with _hold(path):
        kept = _without(_read(path), name).rstrip("\n")
        _write(path, "\n".join([*([kept, ""] if kept else []), *lines, ""]))
    return path


def delete_profile(name: str) -> Path:
    """Delete a profile, and return the path of the file. Raises Invalid or Unavailable."""
    path = profile_path()
    with _hold(path):
        text = _read(path)
        file = parse_profiles(path, text)
        file.find(name)
        text = _without(text, name)
        if file.default == name:
            text = re.sub(rf"(?m)^\s*{_DEFAULT}\s*=.*\n?", "", text, count=1)
        _write(path, text)
    return path


def _settings(values: Mapping[str, str]) -> list[str]:
    import json

    # A string of JSON is one of TOML.
    return [f"{key} = {json.dumps(value)}" for key, value in values.items()]


def _without(text: str, name: str) -> str:
    own = re.compile(rf"""\[\s*profiles\s*\.\s*["']?{re.escape(name)}["']?\s*[.\]]""")
    kept, is_own = [], False
    for line in text.splitlines(keepends=True):
        if line.lstrip().startswith("["):
            is_own = own.match(line.lstrip()) is not None
        if not is_own:
            kept.append(line)
    return "".join(kept)


def _read(path: Path) -> str:
    from tieredstore.disk.errors import wrap_os_errors

    with wrap_os_errors("read", path):
        try:
            return path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return ""
        except UnicodeDecodeError:
            raise Invalid(f"{path}: no TOML: not UTF-8", path=str(path)) from None


@contextmanager
def _hold(path: Path) -> Iterator[None]:
    """Create the folder of the profile file, and lock the file for the block."""
    from tieredstore.disk.errors import NO_FOLDER, wrap_os_errors
    from tieredstore.disk.locks import hold_lock

    with wrap_os_errors("create", path.parent, invalid=NO_FOLDER):
        path.parent.mkdir(parents=True, exist_ok=True)
    with hold_lock(path):
        yield


def _write(path: Path, text: str) -> None:
    from tieredstore.disk.errors import wrap_os_errors
    from tieredstore.disk.file_operations import FILES

    parse_profiles(path, text)  # an unreadable file is never written
    with wrap_os_errors("write", path):
        FILES.replace_file(path, text.encode())
