package org.apache.spark.sql.redisstate.rows

import org.apache.spark.sql.types.{DataType, StructField, StructType}

/** Differences between the columns of a stored state and those of a query: names, types, order. */
private[redisstate] object ColumnChanges {
  private val ShownMax = 8

  /** Describes the differences; None if the columns are the same. */
  def of(written: Columns, now: Columns): Option[String] = {
    val changes = between("key", written.key, now.key) ++
      between("value", written.value, now.value)
    val shown = changes.take(ShownMax) ++
      Option.when(changes.length > ShownMax)(s"and ${changes.length - ShownMax} more")
    Option.when(changes.nonEmpty)(shown.mkString("; "))
  }

  /** Describes the differences like `of`, for columns that are known to differ. */
  def inWords(written: Columns, now: Columns): String =
    of(written, now).getOrElse("their names and types are the same")

  private def between(what: String, written: StructType, now: StructType): Seq[String] = {
    val (before, after) = (numbered(written), numbered(now))
    val (had, has) = (before.toMap, after.toMap)
    val removed = before.collect {
      case (name, field) if !has.contains(name) => s"the $what column ${shown(field)} was removed"
    }
    val changed = after.flatMap { case (name, field) =>
      had.get(name) match {
        case None => Some(s"the $what column ${shown(field)} was added")
        case Some(old) if typeOf(old) != typeOf(field) =>
          Some(s"the $what column '${field.name}' was ${typeOf(old)} and is ${typeOf(field)}")
        case _ => None
      }
    }
    val found = removed ++ changed
    if (found.nonEmpty || before.map(_._1) == after.map(_._1)) found
    else Seq(s"the $what columns were in the order ${names(written)} and are ${names(now)}")
  }

  /**
   * Columns by name, and by their number among those of one name: the buffers of an aggregation
   * share theirs.
   */
  private def numbered(columns: StructType): Seq[((String, Int), StructField)] =
    columns.indices.map { i =>
      val name = columns(i).name
      (name, columns.take(i).count(_.name == name)) -> columns(i)
    }

  private def names(columns: StructType): String = columns.map(_.name).mkString("(", ", ", ")")
  private def shown(field: StructField): String = s"'${field.name}' (${typeOf(field)})"
  private def typeOf(field: StructField): String = field.dataType.catalogString
}

/** The columns of keys and values. */
private[redisstate] final case class Columns(key: StructType, value: StructType) {
  def hasKeysOf(other: Columns): Boolean = Columns.sameTypes(key, other.key)
  def hasValuesOf(other: Columns): Boolean = Columns.sameTypes(value, other.value)
}

private[redisstate] object Columns {

  /** True if rows of both schemas have the same form, whatever the names of their columns. */
  def sameTypes(a: StructType, b: StructType): Boolean =
    DataType.equalsStructurally(a, b, ignoreNullability = true)
}
