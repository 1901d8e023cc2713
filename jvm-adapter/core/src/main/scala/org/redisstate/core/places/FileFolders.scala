package org.redisstate.core.places

/** The folders of block files. */
trait FileFolders {

  /**
   * Returns the files of a checkpoint.
   *
   * @throws org.redisstate.core.errors.ConfigException if its folder is not known
   */
  def of(gen: String): FileStore

  /**
   * Looks for the folder of a checkpoint again, which may have moved since `of` returned it.
   *
   * @return whether it has
   */
  def lookAgain(gen: String): Boolean = false

  /** Disk of this machine for copies of what is read often; None without one. */
  def disk: Option[LocalDisk] = None
}
