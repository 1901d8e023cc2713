package org.redisstate.core.backend

import org.redisstate.core.errors.ConfigException

/** Topology of a URL's servers: one server, Sentinel or Cluster. */
sealed trait Topology

object Topology {
  case object Single extends Topology

  /** Sentinels, who know which server is the master of this name. */
  final case class Sentinel(service: String) extends Topology

  /** Nodes of a cluster, of which any knows the others. */
  case object Cluster extends Topology
}

/**
 * Location of the servers.
 *
 * @param addresses one server, or the sentinels or nodes that are asked for the others
 * @param tls whether TLS is spoken, with sentinels too
 */
final case class RedisUrl(
    addresses: Seq[Address],
    database: Int,
    tls: Boolean,
    topology: Topology) {

  /** The URL in full, with ports and database. */
  override def toString: String = {
    val secure = if (tls) "rediss" else "redis"
    val nodes = addresses.mkString(",")
    topology match {
      case Topology.Single => s"$secure://$nodes/$database"
      case Topology.Sentinel(service) => s"$secure+sentinel://$nodes/$service/$database"
      case Topology.Cluster => s"$secure+cluster://$nodes/$database"
    }
  }
}

/** Reads URLs as `redis_state/url.py` does. No message repeats the URL: it could hold a password. */
object RedisUrl {
  private val Example = "Give a URL such as redis://localhost:6379/0."
  private val Schemes = Set(
    "redis",
    "rediss",
    "redis+sentinel",
    "rediss+sentinel",
    "redis+cluster",
    "rediss+cluster")
  private val Port = 6379
  private val SentinelPort = 26379
  private[core] val AddressesMax = 64
  private val Unwanted = """[\s\x00-\x1f\x7f\\]""".r
  private val HostPort = """(\[[^\[\]]*\]|[^:\[\]]*)(:.*)?""".r
  private val Name = """[0-9A-Za-z_.-]+""".r
  private val Ip6 = """[0-9A-Fa-f:.]+(%[0-9A-Za-z_.-]+)?""".r
  private val Database = """0|[1-9][0-9]{0,4}""".r

  /** @throws ConfigException with the part that is wrong */
  def parse(text: String): RedisUrl = {
    val scheme = schemeOf(text)
    if (text.contains('@')) {
      throw refused(
        "it holds a user name or password, which Spark would show in its UI and event log",
        "Remove the part before '@'; give 'username' and 'password' or 'passwordFile'."
      )
    }
    if (Unwanted.findFirstIn(text).isDefined)
      throw refused("it holds a blank, a control character or a backslash")
    if (text.exists(c => c == '?' || c == '#')) {
      throw refused(
        "it has a part after '?' or '#'",
        "Remove it; give settings as options.")
    }
    val (nodes, path) = text.drop(scheme.length + 3).span(_ != '/')
    val tls = scheme.startsWith("rediss")
    scheme.dropWhile(_ != '+') match {
      case "+sentinel" => sentinel(addresses(nodes, SentinelPort), path.drop(1), tls)
      case "+cluster" =>
        if (database(path.drop(1)) != 0) throw refused("a cluster has only database 0")
        RedisUrl(addresses(nodes, Port), 0, tls, Topology.Cluster)
      case _ =>
        RedisUrl(Seq(address(nodes, Port)), database(path.drop(1)), tls, Topology.Single)
    }
  }

  private def schemeOf(text: String): String = {
    val separated = text.contains("://")
    val scheme =
      if (separated) text.takeWhile(_ != ':').toLowerCase
      else if (text.startsWith("unix:")) "unix"
      else ""
    // The scheme is named only if it is one we know: without "://" it could be anything.
    if (scheme == "unix") {
      throw refused(
        "unix:// is not supported by the JVM adapter",
        "Use redis:// or rediss:// here; Python reads by unix:// too.")
    }
    if (!Schemes(scheme)) {
      throw refused(
        "it does not begin with redis:// or rediss://, nor with redis+sentinel:// or redis+cluster://")
    }
    scheme
  }

  private def sentinel(sentinels: Seq[Address], path: String, tls: Boolean): RedisUrl = {
    val (service, rest) = path.span(_ != '/')
    if (!Name.matches(service)) {
      throw refused(
        "it does not name the master that the sentinels watch",
        "Give a URL such as redis+sentinel://host:26379/mymaster/0.")
    }
    RedisUrl(sentinels, database(rest.drop(1)), tls, Topology.Sentinel(service))
  }

  private def addresses(text: String, port: Int): Seq[Address] = {
    val found = text.split(",", -1).toSeq
    if (found.size > AddressesMax) throw refused(s"it names more than $AddressesMax servers")
    found.map(address(_, port))
  }

  private def address(text: String, portDefault: Int): Address = text match {
    case HostPort(host, colonPort) =>
      val port = Option(colonPort).fold(portDefault)(p => portOf(p.drop(1)))
      Address(hostOf(host), port)
    case _ => throw malformed
  }

  private def portOf(text: String): Int =
    if (text == "0" || text.isEmpty) throw refused("its port is missing after ':' or is 0")
    else if (text.length <= 5 && text.forall(c => c >= '0' && c <= '9') && text.toInt <= 65535)
      text.toInt
    else throw malformed

  private def hostOf(text: String): String = {
    val bare = text.stripPrefix("[").stripSuffix("]")
    val good = if (text.startsWith("[")) Ip6.matches(bare) else Name.matches(bare)
    if (!good) throw refused("its host is missing, or has characters that a host name cannot have")
    bare.toLowerCase
  }

  private def database(text: String): Int =
    if (text.isEmpty) 0
    else if (Database.matches(text)) text.toInt
    else throw refused("the part after the address is not a database number such as /0")

  private def malformed: ConfigException =
    refused("its host is malformed or its port is not a number up to 65535")

  private def refused(found: String, advice: String = Example): ConfigException =
    new ConfigException(s"option 'url'; $found. $advice")
}
