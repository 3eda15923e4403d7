"""`python -m tieredstore`: the command line."""

from tieredstore.cli.main import main

main()
