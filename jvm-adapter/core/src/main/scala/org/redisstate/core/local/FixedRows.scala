package org.redisstate.core.local

/**
 * Rows in an array of a layer that may have moved to a longer one since: what was written stays
 * valid.
 */
private[local] final class FixedRows(bytes: Array[Byte]) extends Arena(bytes)
