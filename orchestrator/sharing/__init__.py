"""A result store that several people share: finished cells by id, in a folder or behind a URL.

    run directory --bundle.pack--> Bundle --store.put--> <store>/<cell id>/<digest>.{tar.gz, json}
    <store>/<cell id> --exchange.pull--> bundle.check --> run directory, with origin.json

What is shared of a cell: settings, launch and ledger, exit records, curves in canonical names,
scores with their single items. Checkpoints, what a program printed, and the paths of the machine
that trained it are not.
"""
