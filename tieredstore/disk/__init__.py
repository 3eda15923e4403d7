"""What every layer asks of the disk: bytes that are there when a call returns, locks, open files.

Nothing here knows what the files hold. All of it raises OSError, as the system does;
`translate_os_error` makes one of our errors of it.
"""
