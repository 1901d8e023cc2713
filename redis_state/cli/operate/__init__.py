"""Commands that run services, or change what Redis holds of a query.

`maintain`, `exporter` and `dashboard` are services; `doctor`, `rewind`, `restore`, `purge` and
`acl` run once. Import `cli.arguments` and the packages that do the work. Begin with `doctor.py`.
"""
