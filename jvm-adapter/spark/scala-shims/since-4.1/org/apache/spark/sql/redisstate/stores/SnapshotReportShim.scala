package org.apache.spark.sql.redisstate.stores

import java.util.UUID

import scala.util.control.NonFatal

import org.apache.spark.SparkEnv
import org.apache.spark.internal.Logging
import org.apache.spark.sql.execution.streaming.state._

/**
 * Since 4.1 Spark asks for the newest snapshot of each store: its driver forces one where it lags
 * behind, and progress shows it.
 */
private[redisstate] trait SnapshotReportShim extends StateStoreProvider with Logging {
  import SnapshotReportShim._

  override def supportedInstanceMetrics: Seq[StateStoreInstanceMetric] = Seq(LastSnapshot)

  protected def metricsOf(
      numKeys: Long,
      memoryBytes: Long,
      custom: Map[StateStoreCustomMetric, Long],
      snapshotVersion: Long): StateStoreMetrics =
    StateStoreMetrics(
      numKeys,
      memoryBytes,
      custom,
      Map(LastSnapshot.withNewId(
        stateStoreId.partitionId,
        stateStoreId.storeName) -> snapshotVersion)
    )

  /** Reports a snapshot to the driver. No state depends on the report. */
  protected def reportSnapshot(runId: String, version: Long): Unit =
    try Option(SparkEnv.get).foreach { env =>
        StateStoreCoordinatorRef.forExecutor(env).snapshotUploaded(
          StateStoreProviderId(stateStoreId, UUID.fromString(runId)),
          version,
          System.currentTimeMillis())
      }
    catch {
      case NonFatal(e) =>
        logInfo(s"The driver could not be told of the snapshot of $stateStoreId: ${e.getMessage}")
    }
}

private object SnapshotReportShim {
  private val LastSnapshot = StateStoreSnapshotLastUploadInstanceMetric()
}
