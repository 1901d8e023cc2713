package org.apache.spark.sql.redisstate.stores

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.util.NextIterator

/** Since 4.1 Spark names the versions to replay by their ids too. */
private[redisstate] trait FineGrainedReplay extends VersionReplay with SupportsFineGrainedReplay {
  override def replayStateFromSnapshot(
      snapshotVersion: Long,
      endVersion: Long,
      readOnly: Boolean,
      snapshotVersionStateStoreCkptId: Option[String],
      endVersionStateStoreCkptId: Option[String]): StateStore = {
    checkStart(snapshotVersion, endVersion, snapshotVersionStateStoreCkptId)
    getStore(endVersion, endVersionStateStoreCkptId)
  }

  override def replayReadStateFromSnapshot(
      snapshotVersion: Long,
      endVersion: Long,
      snapshotVersionStateStoreCkptId: Option[String],
      endVersionStateStoreCkptId: Option[String]): ReadStateStore = {
    checkStart(snapshotVersion, endVersion, snapshotVersionStateStoreCkptId)
    getReadStore(endVersion, endVersionStateStoreCkptId)
  }

  override def getStateStoreChangeDataReader(
      startVersion: Long,
      endVersion: Long,
      colFamilyNameOpt: Option[String],
      endVersionStateStoreCkptId: Option[String])
      : NextIterator[(RecordType.Value, UnsafeRow, UnsafeRow, Long)] =
    changes(startVersion, endVersion, colFamilyNameOpt, endVersionStateStoreCkptId)
}
