package org.apache.spark.sql.redisstate.conf

import java.nio.file.Paths

import org.redisstate.core.backend.{ConnectionSettings, Durability, RedisUrl, Secret, TlsSettings}
import org.redisstate.core.errors.ConfigException
import org.redisstate.core.format.BlockSigner

/** The options under `spark.sql.streaming.stateStore.redis.`, typed. */
final class RedisStateConf private (
    values: Map[String, OptionValue],
    minVersionsToRetain: Int) {
  import OptionValue._

  val connection: ConnectionSettings = ConnectionSettings(
    url,
    text("username"),
    secret("password"),
    text("passwordFile"),
    TlsSettings(
      text("tls.caFile"),
      text("tls.certFile"),
      text("tls.keyFile"),
      flag("tls.verifyHostname")),
    number("socketTimeout").get.toInt,
    number("deadline").get,
    number("connectionsMax").get.toInt,
    Durability.of(text("durability").get)
  )

  /** Empty, or the tenant prefix and a colon. */
  val keyPrefix: String = text("keyPrefix").fold("")(_ + ":")
  val versionsToRetain: Int = number("versionsToRetain").fold(minVersionsToRetain)(_.toInt)

  /** Reads the key; None where blocks are not signed. */
  def signer(): Option[BlockSigner] = text("signingKeyFile").map(BlockSigner.of)

  val ephemeral: Boolean = flag("ephemeral")
  val adoptMovedCheckpoint: Boolean = text("onPathChange").contains("adopt")

  /** True if a checkpoint of another provider is moved here when its query starts. */
  val adopt: Boolean = flag("adopt")

  /** True if queries of a session without a provider keep their state here. */
  val realTime: Boolean = flag("realTime")

  /** Number of partitions that the state gets when its query starts. */
  val rescaleTo: Option[Int] = number("rescaleTo").map(_.toInt)

  /** After how many batches the state is copied into the checkpoint; 0 means never. */
  val copyEveryBatches: Long = number("copyEveryBatches").get

  /** Length of the intervals whose first batch is kept by a name; None means never. */
  val keepEveryMs: Option[Long] = number("keepEvery")

  /** Time for which such a version is kept. */
  val keepForMs: Long = number("keepFor").get

  /** True if maintenance moves history into files. */
  val movesHistory: Boolean = text("history").contains("files")

  /** Folder of block files; None for that in the checkpoint. */
  val placesFolder: Option[String] = text("placesFolder")

  /** Time for which a condemned file stays, and whether it is deleted then. */
  val placesGraceMs: Long = number("placesGrace").get
  val placesDelete: Boolean = flag("placesDelete")

  /** Most memory of the query's state in Redis; None for no bound. */
  val redisMemory: Option[Long] = number("redisMemory")

  /** True if the query writes files of segments. */
  def needsFiles: Boolean = movesHistory || redisMemory.nonEmpty

  /** Time to live of the rows of an operator; None where they do not expire. */
  def stateTtlMs(operator: Long): Option[Long] =
    number(s"stateTtl.$operator").orElse(number("stateTtl"))

  /** Time between two publications of the rows of a running batch; None means never. */
  val publishEveryMs: Option[Long] = number("publishEvery")

  /** Limits of this query, and of all of the key prefix, in Redis. */
  val quota: QuotaLimits = QuotaLimits(number("stateBytesMax"), number("prefixBytesMax"))

  /** Bytes of an executor's own disk for copies of what files have; None for no copies. */
  val localDiskBytes: Option[Long] = number("localDisk")

  /** Folder for them; None for Spark's local folders. */
  val localDiskFolder: Option[String] = text("localDiskFolder")

  /** Most ranges of files that an executor reads ahead at once. */
  val readParallel: Int = number("readParallel").get.toInt

  val localMemoryBytes: Long = number("localMemory").getOrElse(Runtime.getRuntime.maxMemory / 4)

  /**
   * Returns the options that `redis-state` needs to find the same server and keys; never a
   * password.
   */
  def forTools: Seq[(String, String)] = {
    val names = Seq(
      "key-prefix" -> "keyPrefix",
      "username" -> "username",
      "password-file" -> "passwordFile",
      "tls-ca-file" -> "tls.caFile",
      "tls-cert-file" -> "tls.certFile",
      "tls-key-file" -> "tls.keyFile",
      "signing-key-file" -> "signingKeyFile"
    )
    ("url" -> url.toString) +: names.flatMap { case (tool, name) => text(name).map(tool -> _) }
  }

  private def url: RedisUrl = values.collectFirst { case (_, Url(url)) => url }.get

  private def text(name: String): Option[String] =
    values.get(name).collect { case Text(text) => text }

  private def secret(name: String): Option[Secret] =
    values.get(name).collect { case Hidden(secret) => secret }

  private def number(name: String): Option[Long] =
    values.get(name).collect { case Number(number) => number }

  private def flag(name: String): Boolean = values.get(name).contains(Flag(true))
}

object RedisStateConf {
  val Prefix = "spark.sql.streaming.stateStore.redis."

  /**
   * @param confs any Spark configuration; names outside the prefix are passed over
   * @param minVersionsToRetain what `versionsToRetain` is if it is not set
   * @throws org.redisstate.core.errors.ConfigException for an unknown or wrong option, with what to write instead
   */
  def apply(confs: Map[String, String], minVersionsToRetain: Int): RedisStateConf = {
    val texts = confs.collect {
      case (name, value) if name.startsWith(Prefix) => name.stripPrefix(Prefix) -> value
    }
    val conf = new RedisStateConf(OptionTable.parse(texts), minVersionsToRetain)
    if (conf.movesHistory && conf.ephemeral) {
      throw new ConfigException(
        "option 'history'; an ephemeral checkpoint has no history in files. Leave out 'history' or 'ephemeral'.")
    }
    if (conf.redisMemory.nonEmpty && conf.ephemeral) {
      throw new ConfigException(
        "option 'redisMemory'; an ephemeral checkpoint has no files. Leave out 'redisMemory' or 'ephemeral'.")
    }
    if (conf.placesFolder.exists(hasPassword)) {
      throw new ConfigException(
        "option 'placesFolder'; the address has a password in it, and Redis shows it to every reader. Leave it out: " +
          "credentials come from the configuration of the file system.")
    }
    if (conf.localDiskFolder.exists(folder => !Paths.get(folder).isAbsolute)) {
      throw new ConfigException(
        "option 'localDiskFolder'; it is no absolute path. Give a path on the disk of every executor, such as /mnt/disk1.")
    }
    OptionTable.max("versionsToRetain").filter(_ < conf.versionsToRetain).foreach { max =>
      throw new ConfigException(
        s"spark.sql.streaming.minBatchesToRetain is ${conf.versionsToRetain}, and redis-state keeps at most $max versions. " +
          s"Set it lower, or set ${Prefix}versionsToRetain.")
    }
    conf
  }

  /**
   * Returns whether an address has `user:password@` before its host. A password with a slash in it
   * ends what looks like the host, and leaves a port that is no number.
   */
  private def hasPassword(address: String): Boolean = address.split("://", 2) match {
    case Array(_, rest) =>
      val host = rest.takeWhile(_ != '/')
      val user = if (host.contains('@')) host.take(host.lastIndexOf('@')) else host
      val isCut = !host.contains('@') && rest.contains('@') &&
        !user.drop(user.indexOf(':') + 1).forall(_.isDigit)
      (user.contains(':') || user.toLowerCase.contains("%3a")) && (host.contains('@') || isCut)
    case _ => false
  }
}
