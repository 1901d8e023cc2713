package org.redisstate.core.ids

import java.util.UUID

/**
 * One partition of one store of one operator.
 *
 * @param prefix empty, or the tenant prefix followed by `:`
 * @param gen checkpoint id, 32 lower-case hexadecimal digits
 */
final case class PartitionId(
    prefix: String,
    gen: String,
    operator: Long,
    partition: Int,
    storeName: String) {

  /** First 16 hexadecimal digits of the SHA-256 of the store name: no user text enters a key. */
  lazy val storeHash: String = Sha256.first16(storeName)

  /** Returns the same partition of another checkpoint. */
  def ofGen(gen: String): PartitionId = copy(gen = gen)
  override def toString: String = s"operator $operator partition $partition store $storeName"
}

/** A version with the id of the attempt that wrote it. */
final case class Pin(version: Long, uid: String) {

  /** Returns whether this pin stands for a missing version of a store that was loaded empty. */
  def isAbsent: Boolean = version > 0 && uid == "-"
}

object Pin {

  /** Returns a new id of an attempt, or of a writer of a snapshot. */
  def newUid(): String = UUID.randomUUID().toString.replace("-", "")

  /** Version 0, which every partition has and which holds nothing. */
  val Empty: Pin = Pin(0L, "-")

  /** Returns the pin of a missing version. */
  def absent(version: Long): Pin = Pin(version, "-")
}

/**
 * A run of a query with its fencing number.
 *
 * @param byDriver whether the driver registered it before its tasks started
 */
final case class RegisteredRun(id: String, epoch: Long, byDriver: Boolean)
