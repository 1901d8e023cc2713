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
   * Resolves the folder of a checkpoint again, since it may have moved after a call of `of`.
   *
   * @return whether the folder has changed
   */
  def lookAgain(gen: String): Boolean = false

  /** Disk of this machine for copies of frequently read regions; None without one. */
  def disk: Option[LocalDisk] = None
}
