"""Who calls: keys, the tenants that they belong to, what each tenant may use, and whose cache is whose.

Knows no model and no worker.
"""
