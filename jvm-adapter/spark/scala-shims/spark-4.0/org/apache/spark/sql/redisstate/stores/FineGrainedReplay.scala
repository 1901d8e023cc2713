package org.apache.spark.sql.redisstate.stores

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.util.NextIterator

/** Spark 4.0 replays versions by their number. */
private[redisstate] trait FineGrainedReplay extends VersionReplay with SupportsFineGrainedReplay {
  override def replayStateFromSnapshot(snapshotVersion: Long, endVersion: Long): StateStore = {
    checkStart(snapshotVersion, endVersion, None)
    getStore(endVersion, None)
  }

  override def replayReadStateFromSnapshot(
      snapshotVersion: Long,
      endVersion: Long): ReadStateStore = {
    checkStart(snapshotVersion, endVersion, None)
    getReadStore(endVersion, None)
  }

  override def getStateStoreChangeDataReader(
      startVersion: Long,
      endVersion: Long,
      colFamilyNameOpt: Option[String])
      : NextIterator[(RecordType.Value, UnsafeRow, UnsafeRow, Long)] =
    changes(startVersion, endVersion, colFamilyNameOpt, None)
}
