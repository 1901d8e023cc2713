package org.redisstate.core.backend

/** Chooses the transport that a URL describes. */
object Transports {

  /** The transport for these settings. Nothing is connected before the first exchange. */
  def to(settings: ConnectionSettings): Transport = settings.url.topology match {
    case Topology.Single => new JedisTransport(settings, settings.url.addresses.head)
    case Topology.Sentinel(service) => new SentinelTransport(settings, service)
    case Topology.Cluster => new ClusterTransport(settings)
  }
}
