"""When may a Workload start? Our AdmissionCheck, and the ProvisioningRequests for missing nodes."""
