"""`tieredstore store recover`: do what `store check` shows."""

from __future__ import annotations

from pathlib import Path

import click

from tieredstore.cli.exits import ExitCode
from tieredstore.cli.logs.saying import say
from tieredstore.cli.options.local_store import LocalStoreOptions, local_store_options
from tieredstore.cli.options.output import output_option
from tieredstore.cli.output.recovery import write_plan
from tieredstore.cli.output.rows import Output


@click.command("recover")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@local_store_options
@click.option("--yes", is_flag=True, help="Do it; without this only the plan is shown.")
@output_option
def command(directory: Path, local: LocalStoreOptions, yes: bool, out: Output) -> int:
    """Recover the store in DIR, and leave it cleanly stopped; a dry run without --yes.

    With --yes, valid messages behind a damaged one are cut off: the plan says which. A store
    recovers by itself when it is opened, but for that.
    """
    from tieredstore.cli.logs.lines import log_to_stderr
    from tieredstore.local.message_store import DefaultMessageStore

    log_to_stderr()
    config, plan = local.plan_recovery(directory)
    if yes and (plan.is_needed or local.rebuild):
        store = DefaultMessageStore(config)
        store.load(accept_loss=True, rebuild=local.rebuild)
        try:
            store.start()
        finally:
            store.shutdown()
    write_plan(out, plan)
    if not yes and plan.is_needed:
        say("nothing was changed; add --yes to do this")
        return int(ExitCode.DAMAGE)
    return int(ExitCode.OK)
