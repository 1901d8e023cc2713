package org.apache.spark.sql.redisstate.places

import java.util.concurrent.ConcurrentHashMap

import scala.util.Try

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path
import org.json4s.{DefaultFormats, JValue}
import org.json4s.JsonDSL._
import org.json4s.jackson.JsonMethods.{compact, parse, render}

import org.apache.spark.sql.redisstate.conf.RedisStateConf

import org.redisstate.core.backend.RedisBackend
import org.redisstate.core.errors.{ConfigException, FormatException}
import org.redisstate.core.places.{BlockFileName, FileFolders, FileStore, LocalDisk}
import org.redisstate.core.protocol.RunRegistry

/** Settings of a checkpoint's block files: the field `places` of its registry (docs/format.md, section 17). */
private[redisstate] final case class FilesField(
    folder: String,
    graceMs: Long,
    moves: Boolean,
    deletes: Boolean) {
  def text: String = compact(render(
    ("folder" -> folder) ~ ("grace" -> graceMs) ~
      ("history" -> (if (moves) FilesField.Files else FilesField.Redis)) ~ ("delete" -> deletes)))
}

private[redisstate] object FilesField {
  private val Files = "files"
  private val Redis = "redis"
  private val GraceMs = 24L * 3600 * 1000

  /** @throws FormatException if the field is damaged */
  def parsed(gen: String, text: String): FilesField = {
    implicit val formats: DefaultFormats.type = DefaultFormats
    val found =
      for {
        json <- Try(parse(text): JValue).toOption
        folder <- (json \ "folder").extractOpt[String].filter(_.nonEmpty)
      } yield FilesField(
        folder,
        (json \ "grace").extractOpt[Long].getOrElse(GraceMs),
        (json \ "history").extractOpt[String].contains(Files),
        (json \ "delete").extractOpt[Boolean].contains(true)
      )
    found.getOrElse(throw new FormatException(
      s"read where the files of checkpoint $gen are: the field 'places' of the query is damaged. Restore the server's data " +
        "from before the damage."))
  }
}

/**
 * Folders of block files: of this checkpoint, and of those that it was forked from.
 *
 * @param stateRoot the checkpoint's state folder, as Spark names it in a store's id
 * @param gen of this checkpoint
 * @param option value of the option `placesFolder`
 * @param fieldOf reads the field `places` of a checkpoint
 * @param disk for copies of what is read often
 */
private[redisstate] final class SegmentFolders(
    stateRoot: String,
    hadoopConf: Configuration,
    gen: String,
    option: Option[String],
    fieldOf: String => Option[String],
    override val disk: Option[LocalDisk] = None)
    extends FileFolders {
  private val known = new ConcurrentHashMap[String, FileStore]

  /** The folder of this checkpoint if the field in Redis names none, or one that moved with the checkpoint. */
  private def ownFolder: Path =
    option.map(new Path(_)).getOrElse(new Path(stateRoot, BlockFileName.Folder))

  /** Returns the address that a writer of this checkpoint records. */
  def address: String = qualified(ownFolder)

  /** Returns whether the files lie in this checkpoint, so that no copy of it has the same folder. */
  def isInCheckpoint: Boolean = addressOutside.isEmpty

  /** Address of the files, if they do not lie in this checkpoint. */
  def addressOutside: Option[String] =
    Some(qualified(folderOf(gen)))
      .filter(_ != qualified(new Path(stateRoot, BlockFileName.Folder)))

  private def qualified(folder: Path): String =
    folder.getFileSystem(hadoopConf).makeQualified(folder).toString

  /**
   * Checks that the files are in the folder that the options name, if another one is recorded: a
   * folder may move as a whole, or have another address.
   *
   * @param used names of files that segments are in
   * @throws ConfigException if the folder has none of the files
   */
  def checkMove(recorded: FilesField, used: => Seq[String]): Unit =
    if (recorded.folder != address && !hasAny(used)) {
      throw new ConfigException(
        s"option 'placesFolder'; the files of this checkpoint are in ${recorded.folder}, and $address has none of them. " +
          s"Give the former, or move its folder $gen as a whole before the query starts.")
    }

  /**
   * Returns the address to record without `history=files`: another one if the files lie in this
   * checkpoint by default, and moved with it.
   */
  def addressOf(recorded: FilesField, used: => Seq[String]): String = {
    val isDefault = option.isEmpty && SegmentFolders.isInCheckpoint(recorded.folder)
    if (isDefault && recorded.folder != address && hasAny(used)) address else recorded.folder
  }

  private def hasAny(used: Seq[String]): Boolean = used.isEmpty || {
    val files = new HadoopFiles(new Path(ownFolder, gen), hadoopConf)
    used.groupMap(_.takeWhile(_ != '/'))(_.dropWhile(_ != '/').drop(1)).exists {
      case (under, names) => files.list(under).exists(_.exists(names.toSet))
    }
  }

  override def of(wanted: String): FileStore = Option(known.get(wanted)).getOrElse {
    val found = new HadoopFiles(new Path(folderOf(wanted), wanted), hadoopConf)
    Option(known.putIfAbsent(wanted, found)).getOrElse(found)
  }

  override def lookAgain(wanted: String): Boolean = {
    val found = new HadoopFiles(new Path(folderOf(wanted), wanted), hadoopConf)
    Option(known.put(wanted, found)).exists(_.folder != found.folder)
  }

  private def folderOf(wanted: String): Path =
    if (wanted == gen && option.nonEmpty) ownFolder
    else {
      fieldOf(wanted).map(FilesField.parsed(wanted, _).folder) match {
        case Some(recorded) if wanted == gen && SegmentFolders.isInCheckpoint(recorded) => ownFolder
        case Some(recorded) => new Path(recorded)
        case None if wanted == gen => ownFolder
        case None =>
          throw new FormatException(
            s"read the files of checkpoint $wanted: its query does not name their folder. Restore the server's data from " +
              "before the loss, or start that query again with the 'placesFolder' that it had.")
      }
    }
}

private[redisstate] object SegmentFolders {

  /** Folders by the settings of a query. */
  def of(
      stateRoot: String,
      hadoopConf: Configuration,
      conf: RedisStateConf,
      backend: RedisBackend,
      gen: String,
      disk: Option[LocalDisk] = None): SegmentFolders =
    new SegmentFolders(
      stateRoot,
      hadoopConf,
      gen,
      conf.placesFolder,
      wanted => new RunRegistry(backend, conf.keyPrefix, wanted).files,
      disk)

  /** Returns whether a folder is that which a checkpoint has for its files by default. */
  private[places] def isInCheckpoint(folder: String): Boolean =
    folder.endsWith(s"/state/${BlockFileName.Folder}")
}
