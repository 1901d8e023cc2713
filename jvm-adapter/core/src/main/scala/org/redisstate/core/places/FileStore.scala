package org.redisstate.core.places

/**
 * Files of a folder, each written once and never changed. Requires only create, range read and
 * delete of a file system: no rename, overwrite, append or consistent listing. Names are relative,
 * with `/` between folder and file. Thread-safe.
 *
 * Every method throws `UnavailableException` if the file system gives no answer, and
 * `PermissionException` if it refuses access; both name the folder.
 */
trait FileStore {

  /** Name of the folder in messages. */
  def folder: String

  /** Creates a file, and the folders above it. */
  def create(name: String): FileSink

  /**
   * Reads a range.
   *
   * @throws FileMissing if the file does not exist, or ends before the range does
   */
  def read(name: String, offset: Long, length: Int): Array[Byte]

  /** Removes a file; does nothing if it does not exist. */
  def delete(name: String): Unit

  /**
   * Lists the folder, or a folder in it, in no order; a file system may list new names late.
   *
   * @param under name of a folder in this one; empty for this one
   * @return None if the folder does not exist
   */
  def list(under: String = ""): Option[Seq[String]]

  /**
   * Returns whether a folder of the folder is certainly not there, as on a disk that is not mounted.
   * False on a file system that is not the machine's own.
   */
  def isMissing(under: String): Boolean = false
}

/** A file under construction. */
trait FileSink {
  def write(bytes: Array[Byte]): Unit

  /** Ends the file, which then survives a crash as far as its file system supports that. */
  def close(): Unit

  /** Abandons the file, a part of which may remain. Never throws. */
  def abandon(): Unit
}

/** A file does not exist, or is shorter than required. */
final class FileMissing(val found: String, cause: Throwable = null)
    extends RuntimeException(found, cause)
