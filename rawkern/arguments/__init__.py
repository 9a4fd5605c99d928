"""What Python's arguments become: the rules, their slow reading and the native one."""
