package org.redisstate.core.ids

/** Spells every Redis key (docs/format.md, section 2). */
object Keys {

  def meta(id: PartitionId): String = s"${base(id)}:m"

  /** @param ident `d:<version>:<uid>` or `s:<version>:<writer>` */
  def segment(id: PartitionId, ident: String): String = s"${base(id)}:$ident"

  /** Key of a segment's blocks before they get the key of the segment. */
  def staged(id: PartitionId, ident: String): String = s"${base(id)}:n:$ident"

  /**
   * Keys of the manifest and of the list of files of a partition whose store is known by its hash.
   *
   * @param partition `<operator>-<partition>-<store hash>`, as the folder of its files
   */
  def metaAndFiles(prefix: String, gen: String, partition: String): Seq[String] = {
    val of = s"{${prefix}rs:$gen:${partition.replace('-', ':')}}"
    Seq(s"$of:m", s"$of:f")
  }

  /** Key of the list of a partition's files. */
  def files(id: PartitionId): String = s"${base(id)}:f"

  def query(prefix: String, gen: String): String = s"{${prefix}rs:$gen}:q"

  def checkpoints(prefix: String): String = s"{${prefix}rs}:c"

  /** Key of the list of state sizes below a key prefix, kept by queries with a limit. */
  def sizes(prefix: String): String = s"{${prefix}rs}:b"

  /** Key of the gen that was claimed for a path without a marker. */
  def genClaim(prefix: String, pathHash: String): String = s"{${prefix}rs}:g:$pathHash"

  def instance(id: PartitionId): String =
    s"{${id.prefix}rs:${id.gen}}:i:${id.operator}:${id.partition}:${id.storeHash}"

  /** Key of the totals that the checkpoint's instances have counted. */
  def totals(id: PartitionId): String = totalsOf(id.prefix, id.gen)
  def totalsOf(prefix: String, gen: String): String = s"{${prefix}rs:$gen}:t"

  /** Common prefix of all keys of a partition. */
  private def base(id: PartitionId): String =
    s"{${id.prefix}rs:${id.gen}:${id.operator}:${id.partition}:${id.storeHash}}"
}
