"""What would each policy have given the gangs of a recorded trace? Jobs, quota and plans in virtual time."""
