"""What Python's arguments become: the rules, their careful reading and the native one."""
