package org.redisstate.core.places

import java.io.ByteArrayOutputStream

import scala.collection.mutable

import org.redisstate.core.errors.UnavailableException

/**
 * A folder of a played file system.
 *
 * @param clock milliseconds
 */
private[core] final class PlayedFiles(clock: () => Long = () => 0L)
    extends FileStore
    with FileFolders {
  private val files = mutable.LinkedHashMap.empty[String, Array[Byte]]
  private val made = mutable.HashMap.empty[String, Long]
  private val names = mutable.HashSet.empty[String]

  /** Milliseconds for which a new file is not found. */
  var lateMs: Long = 0

  /** For how many milliseconds a new file is not listed. */
  var listedLateMs: Long = 0

  /** Bytes that an upload loses at its end. */
  var cutBytes: Int = 0

  /** True if the file system answers. */
  var answers: Boolean = true

  /** True if the folder exists. */
  var isThere: Boolean = true

  /** Called before each step, with its name. */
  var before: String => Unit = _ => ()

  /** Names of what was read. */
  val reads: mutable.ArrayBuffer[String] = mutable.ArrayBuffer.empty

  /** Bytes of the longest read. */
  var longestRead: Int = 0

  /** The disk of the machine that reads. */
  var localDisk: Option[LocalDisk] = None

  override def of(gen: String): FileStore = this
  override def disk: Option[LocalDisk] = localDisk
  override def folder: String = "played:/files"

  override def create(name: String): FileSink = step("create") {
    assert(names.add(name), s"the name $name was used before")
    new FileSink {
      private val out = new ByteArrayOutputStream
      override def write(bytes: Array[Byte]): Unit = step("write")(out.write(bytes))
      override def close(): Unit = step("close") {
        put(name, out.toByteArray.dropRight(cutBytes))
      }
      override def abandon(): Unit = put(name, out.toByteArray)
    }
  }

  def put(name: String, bytes: Array[Byte]): Unit = synchronized {
    files(name) = bytes
    made(name) = clock()
  }

  def bytes(name: String): Array[Byte] = synchronized(files(name))
  def all: Seq[String] = synchronized(files.keys.toSeq)

  override def read(name: String, offset: Long, length: Int): Array[Byte] = step("read") {
    synchronized {
      reads += name
      longestRead = math.max(longestRead, length)
      val found = files.get(name).filter(_ => clock() - made(name) >= lateMs)
      found match {
        case None => throw new FileMissing("it is not there")
        case Some(bytes) if offset + length > bytes.length => throw new FileMissing("it is cut")
        case Some(bytes) =>
          java.util.Arrays.copyOfRange(bytes, offset.toInt, offset.toInt + length)
      }
    }
  }

  override def delete(name: String): Unit = step("delete") {
    synchronized {
      files.remove(name)
      ()
    }
  }

  override def list(under: String): Option[Seq[String]] = step("list") {
    val prefix = if (under.isEmpty) "" else s"$under/"
    val shown = synchronized(all.filter(name => clock() - made(name) >= listedLateMs))
    Option.when(isThere)(shown.filter(_.startsWith(prefix)).map(_.drop(prefix.length).takeWhile(
      _ != '/')).distinct)
  }

  override def isMissing(under: String): Boolean = !isThere

  private def step[A](name: String)(body: => A): A = {
    before(name)
    if (!answers) throw new UnavailableException(s"$folder does not answer")
    body
  }
}
