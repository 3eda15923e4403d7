"""The `tieredstore` command. Start-up stays cheap: a verb's module is imported when it runs."""

from __future__ import annotations

import os
import sys
from typing import NamedTuple, NoReturn

import click

from tieredstore import __version__
from tieredstore.cli.exits import (
    MEANINGS,
    ExitCode,
    OutputClosed,
    close_stdout_quietly,
    describe_error,
    exit_code_of,
    say_notes,
)
from tieredstore.cli.help.completing import VARIABLE
from tieredstore.cli.lazy import LazyGroup
from tieredstore.cli.logs.choice import LogChoice, log_options
from tieredstore.cli.logs.saying import say


class Verb(NamedTuple):
    """Where a verb is, and what it does. room: the folder below `verbs/` that has the module of its
    name, which holds the command `command`. line: its line in `--help`."""

    room: str
    line: str


VERBS = {
    "advise": Verb("checking", "Say which settings suit what a broker and its consumers did."),
    "backfill": Verb("copying", "Write the messages of a Parquet table into a tier."),
    "broker": Verb("brokers", "Run a broker."),
    "cat": Verb("reading", "Print messages of topics."),
    "compact": Verb("upkeep", "Put what is in many small files into few."),
    "completion": Verb("settings", "Print what makes a shell complete this command."),
    "config": Verb("settings", "Check and show a configuration; back up what a broker keeps."),
    "copy": Verb("copying", "Copy a tier to another place."),
    "dev": Verb("brokers", "Run a broker for the development of applications."),
    "doctor": Verb("checking", "Try what a place for a tier really does."),
    "export": Verb("copying", "Write messages as Parquet, Iceberg or Delta."),
    "jobs": Verb("upkeep", "List and forget what interrupted jobs have kept."),
    "health": Verb("checking", "Say how a tier is, for probes."),
    "ls": Verb("reading", "List the queues of a tier."),
    "man": Verb("settings", "Print all of the help as a manual page."),
    "offload": Verb("copying", "Copy a broker's store into a tier."),
    "profile": Verb("settings", "Name tiers, so that verbs which delete nothing find them."),
    "query": Verb("reading", "Find messages by key or message id."),
    "rebuild": Verb("upkeep", "Make anew what a tier or its state has lost."),
    "report": Verb("checking", "Say what a tier holds and costs, as a page and tables."),
    "restore": Verb("copying", "Make a broker's store from its tier, when its disk was lost."),
    "send": Verb("brokers", "Send messages to a running broker."),
    "sql": Verb("reading", "Query the topics of a tier as tables."),
    "stat": Verb("reading", "Summarise a tier."),
    "store": Verb("upkeep", "Check and recover a broker's local store."),
    "tail": Verb("brokers", "Print messages of a running broker as they come."),
    "tier": Verb("upkeep", "Delete, expire or move on by hand what a tier has."),
    "topic": Verb("brokers", "Make, list and delete topics of a running broker."),
    "verify": Verb("checking", "Check every byte of a tier and report all damage."),
}
"""In the order of `--help`."""

NO_ARGUMENTS = getattr(click.exceptions, "NoArgsIsHelpError", ())
"""A group without a verb: the error's text is the whole help. Older clicks print it themselves."""


class Verbs(LazyGroup):
    """The command itself, whose help ends with the exit codes of all verbs."""

    def find_module(self, name: str) -> str:
        return f"tieredstore.cli.verbs.{VERBS[name].room}.{name}"

    def find_full_name(self, name: str) -> str:
        return name

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(int(code)), text) for code, text in MEANINGS.items()])


@click.group(
    cls=Verbs,
    lines={name: verb.line for name, verb in VERBS.items()},
    package="tieredstore.cli.verbs",
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
    """Run one command line and return its exit code; errors are one line on stderr."""
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:], "--help"]
    choice = LogChoice()
    _open_closed_streams()
    try:
        result = cli.main(arguments, "tieredstore", standalone_mode=False, obj=choice)
        sys.stdout.flush()
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.ClickException as error:
        if isinstance(error, NO_ARGUMENTS):
            click.echo(error.format_message())
            return int(ExitCode.OK)
        # Usage errors: click's own text has the usage line and the nearest option.
        hint = getattr(error, "ctx", None)
        where = "" if hint is None else f"; see `{hint.command_path} --help`"
        text = " ".join(_text_of(error).split()).rstrip(".")
        say(f"{text}{where}", "error", choice)
        return int(ExitCode.INVALID)
    except (BrokenPipeError, OutputClosed):
        close_stdout_quietly()
        return int(ExitCode.OK)
    except (Exception, KeyboardInterrupt, click.Abort) as error:
        if os.environ.get("TIEREDSTORE_TRACEBACK"):
            raise
        if isinstance(error, click.Abort):
            say_notes(error.__cause__, choice)
            error = KeyboardInterrupt()
        say_notes(error, choice)
        say(describe_error(error), "error", choice)
        return int(exit_code_of(error))
    return int(result) if isinstance(result, int) else int(ExitCode.OK)


def _open_closed_streams() -> None:
    """Let what is printed go nowhere where whoever started the command has closed a stream: a
    service does so, and works on."""
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
