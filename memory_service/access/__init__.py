"""Who may do what: keys, tenants, scopes, quotas, TLS and the audit log."""
