"""Disk access for every layer: durable writes, locks, open files, notes. Like the system, its
functions raise OSError, which `translate_os_error` converts into an error of
`tieredstore.errors`."""
