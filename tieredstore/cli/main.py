"""The `tieredstore` command. Modules of verbs are imported on demand, so that the command starts
fast."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import NamedTuple, NoReturn, cast

import click

from tieredstore import __version__
from tieredstore.cli import exits
from tieredstore.cli.lazy import VerbGroup
from tieredstore.cli.logs.choice import LogChoice, log_options, say
from tieredstore.cli.options.completing import VARIABLE
from tieredstore.cli.output.rows import OutputClosed


class Verb(NamedTuple):
    """Verb of the command. `module`: module in `verbs/` that defines the verb. `line`: its line in
    `--help`."""

    module: str
    line: str


VERBS = {
    "advise": Verb("advise", "Find settings that suit a broker and its consumers."),
    "backfill": Verb("copying", "Write the messages of a Parquet table into a tier."),
    "broker": Verb("brokers", "Run a broker."),
    "cat": Verb("cat", "Print messages of topics."),
    "compact": Verb("jobs", "Merge many small files into few."),
    "completion": Verb("settings", "Print a shell completion script."),
    "config": Verb("settings", "Check and show a configuration. Back up config/ of a broker."),
    "copy": Verb("copying", "Copy a tier to another place."),
    "dev": Verb("brokers", "Run a broker for development."),
    "doctor": Verb("checking", "Check that a storage backend is safe to use."),
    "export": Verb("jobs", "Write messages as Parquet, Iceberg or Delta."),
    "jobs": Verb("jobs", "List and delete journals of interrupted jobs."),
    "health": Verb("checking", "Report tier health (exit code for probes)."),
    "ls": Verb("reading", "List the queues of a tier."),
    "man": Verb("settings", "Print all of the help as a manual page."),
    "offload": Verb("copying", "Copy a broker's store into a tier."),
    "profile": Verb("settings", "Name tiers, for verbs that delete nothing."),
    "query": Verb("reading", "Find messages by key or message id."),
    "rebuild": Verb("jobs", "Rebuild lost indexes or metadata."),
    "report": Verb("checking", "Report content and cost of a tier, as a page and tables."),
    "restore": Verb("copying", "Create a broker's store from its tier, after its disk was lost."),
    "sample": Verb("settings", "Write a small tier with messages that look real."),
    "send": Verb("brokers", "Send messages to a running broker."),
    "sql": Verb("reading", "Query the topics of a tier as tables."),
    "stat": Verb("reading", "Summarise a tier."),
    "store": Verb("store", "Check and recover a broker's local store."),
    "tail": Verb("brokers", "Print messages of a running broker as they arrive."),
    "tier": Verb("tier", "Administer a tier by hand: delete, expire, skip, reset."),
    "topic": Verb("brokers", "Create, list and delete topics of a running broker."),
    "verify": Verb("checking", "Check every byte of a tier and report all damage."),
}
"""Verbs in the order of `--help`."""

NO_ARGUMENTS = getattr(click.exceptions, "NoArgsIsHelpError", ())
"""Error for a group that is called without a verb. Its text is the whole help. Newer versions of
click raise such an error, older ones print the help."""


class Verbs(VerbGroup):
    """Command group that imports only the module of the verb that runs."""

    def list_lines(self) -> Mapping[str, str]:
        return {name: verb.line for name, verb in VERBS.items()}

    def find_command(self, name: str) -> click.Command:
        module = import_module(f"tieredstore.cli.verbs.{VERBS[name].module}")
        return cast(click.Command, getattr(module, name))

    def find_full_name(self, name: str) -> str:
        return name

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(int(code)), text) for code, text in exits.MEANINGS.items()])


@click.group(
    cls=Verbs,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, "-V", "--version", prog_name="tieredstore")
def cli() -> None:
    """RocketMQ messages whose history lives in a tier: copy, list, read, search, verify.

    A tier is a folder, or a URL: file:///dir, s3://bucket/prefix (docs/s3.md), docs/fsspec.md.
    TIEREDSTORE_TIER names it for verbs that delete nothing.
    Times are epoch milliseconds, ISO 8601 (UTC unless it says otherwise), relative (-2h, -1d),
    today or yesterday. Fields: docs/cli.md.

    `tieredstore help VERB` is `tieredstore VERB --help`.
    """


cli.params.extend(log_options())


def main() -> NoReturn:
    """Run the console script."""
    sys.exit(run([] if VARIABLE in os.environ else sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run a command line and return its exit code. Errors are printed as one line on stderr."""
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:], "--help"]
    choice = LogChoice()
    exits.note_store(None)
    _open_closed_streams()
    try:
        result = cli.main(arguments, "tieredstore", standalone_mode=False, obj=choice)
        sys.stdout.flush()
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.ClickException as error:
        if isinstance(error, NO_ARGUMENTS):
            click.echo(error.format_message())
            return int(exits.ExitCode.OK)
        # Usage errors: click's own text has the usage line and the nearest option.
        hint = getattr(error, "ctx", None)
        where = "" if hint is None else f"; see `{hint.command_path} --help`"
        text = " ".join(_text_of(error).split()).rstrip(".")
        say(f"{text}{where}", "error", choice)
        return int(exits.ExitCode.INVALID)
    except (BrokenPipeError, OutputClosed):
        exits.close_stdout_quietly()
        return int(exits.ExitCode.OK)
    except (Exception, KeyboardInterrupt, click.Abort) as error:
        if os.environ.get("TIEREDSTORE_TRACEBACK"):
            raise
        if isinstance(error, click.Abort):
            exits.say_notes(error.__cause__, choice)
            error = KeyboardInterrupt()
        exits.say_notes(error, choice)
        say(exits.describe_error(error), "error", choice)
        return int(exits.exit_code_of(error))
    return int(result) if isinstance(result, int) else int(exits.ExitCode.OK)


def _open_closed_streams() -> None:
    """Redirect closed standard streams to the null device. A service manager may start the command
    with closed streams."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115


def _text_of(error: click.ClickException) -> str:
    from tieredstore.cli.help.suggesting import describe_option, hint_at_conf

    if isinstance(error, click.NoSuchOption):
        return describe_option(error)
    text = error.format_message().rstrip(".")
    if isinstance(error, click.MissingParameter) and error.ctx and error.param:
        text += hint_at_conf(error.ctx.params, error.param.name or "")
    return text


if __name__ == "__main__":
    main()
