package org.redisstate.core.store

import org.redisstate.core.format.Family
import org.redisstate.core.local.KeyHash

/**
 * Column families of an attempt at a version, as it defines and removes them. For one task thread.
 *
 * @param initial families that the attempt begins with
 * @param highestBefore id of all that the lineage ever had
 */
private[store] final class WriteFamilies(initial: Seq[Family], highestBefore: Int) {
  private var families = initial
  private var highest = math.max(highestBefore, initial.map(_.id).max)
  private var hash = KeyHash.of(initial)
  private var internal = internalIds

  def all: Seq[Family] = families

  /** Highest id that the lineage ever had. */
  def highestId: Int = highest

  def hashOf: KeyHash = hash

  def isInternal(id: Int): Boolean = internal.nonEmpty && internal(id)

  /** Adds or replaces the description of a family; @return false for one that is known so. */
  def define(family: Family): Boolean = !families.contains(family) && {
    highest = math.max(highest, family.id)
    replace(families.filter(_.id != family.id) :+ family)
    true
  }

  /** Removes a family; its id is never used again. */
  def remove(id: Int): Unit = replace(families.filter(_.id != id))

  def table: FamilyTable = FamilyTable(families, highest)

  private def replace(now: Seq[Family]): Unit = {
    families = now
    hash = KeyHash.of(now)
    internal = internalIds
  }

  private def internalIds: Set[Int] = families.filter(_.internal).map(_.id).toSet
}
