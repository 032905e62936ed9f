"""Exit statuses of the command."""

USERS_FAULT = 2
OUR_FAULT = 1
INTERRUPTED = 130
TERMINATED = 143
