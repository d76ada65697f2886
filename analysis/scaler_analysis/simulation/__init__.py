"""What would policies have done? The decision's own code over recorded samples, in virtual time."""
