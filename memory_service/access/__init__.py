"""Who may do what: callers by API key or client certificate, scopes, tenants, quotas, TLS and the audit log.

In goes a call's header or certificate, out comes an `Access`; `Catalogue` opens knowledge bases with it.
"""
