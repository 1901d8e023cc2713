package org.redisstate.core.places

/**
 * Files of a folder, each written once and never changed. It needs nothing from a file system but
 * create, range read and delete: no rename, no overwrite, no append, no consistent listing. Names
 * are relative, with `/` between folder and file. Thread-safe.
 *
 * Every method throws `UnavailableException` where the file system gives no answer, and
 * `PermissionException` where it refuses one; both name the folder.
 */
trait FileStore {

  /** The folder, as messages name it. */
  def folder: String

  /** Begins a file; folders above it are made. */
  def create(name: String): FileSink

  /**
   * Reads a range.
   *
   * @throws FileMissing if the file is not there, or ends before the range does
   */
  def read(name: String, offset: Long, length: Int): Array[Byte]

  /** Removes a file; does nothing if there is none. */
  def delete(name: String): Unit

  /**
   * Names in the folder, or in a folder of it, in no order; a file system may show new ones late.
   *
   * @param under name of a folder of it; empty for itself
   * @return None if there is no such folder
   */
  def list(under: String = ""): Option[Seq[String]]
}

/** A file that is being written. */
trait FileSink {
  def write(bytes: Array[Byte]): Unit

  /** Ends the file. When this returns, the file outlives a crash, as far as its file system knows how. */
  def close(): Unit

  /** Abandons the file, which may leave a part of it. Never throws. */
  def abandon(): Unit
}

/** A file is not there, or is shorter than it has to be. */
final class FileMissing(val found: String, cause: Throwable = null)
    extends RuntimeException(found, cause)
