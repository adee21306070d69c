"""Who may do what: callers by API key or client certificate, scopes, tenants, quotas, TLS and the audit log.

In goes a call's header or certificate, out comes an `Access`, with which a `Runtime` opens knowledge bases.
"""
