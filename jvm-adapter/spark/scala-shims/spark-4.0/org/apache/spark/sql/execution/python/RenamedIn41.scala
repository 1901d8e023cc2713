package org.apache.spark.sql.execution.python

/** Spark 4.1 renamed this operator; the sources name it as it is called since. */
package object streaming {
  type TransformWithStateInPySparkExec = streaming.TransformWithStateInPandasExec
}
