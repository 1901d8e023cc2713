--#include lineage
--#include pins
-- Lists the segments that an owner pins. Changes nothing.
-- KEYS  1 P:m
-- ARGV  1 owner
-- Reply OK version uid expires kind opened floor [field entry place]…, newest first · NONE (no such pin)
--       STATE_LOST latest floor · FORMAT found
local format = meta('f')
if not format then return {'NONE'} end
if not FORMATS[format] then return {'FORMAT', format} end
local version, uid, expires, kind, idents = pin_of(ARGV[1])
if not version then return {'NONE'} end
local found = by_ident(idents)
if not found then return {'STATE_LOST', meta('l'), meta('w')} end
return answer({'OK', text(version), uid, text(expires), kind, meta('o'), meta('w')}, found)
