package org.redisstate.core.ids

import java.nio.charset.StandardCharsets.UTF_8
import java.security.MessageDigest
import java.util.HexFormat

/** Spells every Redis key (docs/format.md, section 2). */
object Keys {

  def meta(id: PartitionId): String = s"${id.base}:m"

  /** @param ident `d:<version>:<uid>` or `s:<version>:<writer>` */
  def segment(id: PartitionId, ident: String): String = s"${id.base}:$ident"

  def query(prefix: String, gen: String): String = s"{${prefix}rs:$gen}:q"

  def checkpoints(prefix: String): String = s"{${prefix}rs}:c"

  /** Which gen the checkpoint of a path gets that has none yet. */
  def genClaim(prefix: String, pathHash: String): String = s"{${prefix}rs}:g:$pathHash"

  def instance(id: PartitionId): String =
    s"{${id.prefix}rs:${id.gen}}:i:${id.operator}:${id.partition}:${storeHash(id.storeName)}"

  /** First 16 hexadecimal digits of the SHA-256 of a store name: no user text enters a key. */
  def storeHash(storeName: String): String = sha256(storeName).substring(0, 16)

  def sha256(text: String): String =
    HexFormat.of.formatHex(MessageDigest.getInstance("SHA-256").digest(text.getBytes(UTF_8)))

  /** What all keys of a partition begin with. */
  private[ids] def base(id: PartitionId): String =
    s"{${id.prefix}rs:${id.gen}:${id.operator}:${id.partition}:${storeHash(id.storeName)}}"
}
