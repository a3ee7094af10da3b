"""The kernel log: reading /dev/kmsg records and recognising the lines that speak of faults."""
