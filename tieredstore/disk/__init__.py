"""Disk access for every layer: durable writes, locks, open files, notes. This package knows no
other file formats. Its functions raise OSError, as the system does. `translate_os_error` converts
an OSError into an error of `tieredstore.errors`."""
